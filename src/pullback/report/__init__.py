"""Reports on the screen and for other programs: one format per file, with a `render`."""
