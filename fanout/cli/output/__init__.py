"""What commands print: styled text, figures, progress."""
