"""Tables that are kept up to date from rolling segments: each sealed file counts once."""
