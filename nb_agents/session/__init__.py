"""Sessions on disk: paths, the journal, the files derived from it, and loading them."""
