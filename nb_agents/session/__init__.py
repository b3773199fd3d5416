"""Sessions on disk: paths, journals, derived files, and loading."""
