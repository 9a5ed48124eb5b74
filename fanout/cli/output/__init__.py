"""Output of commands: styled text, figures, progress."""
