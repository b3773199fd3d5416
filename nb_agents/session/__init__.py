"""What is on disk: names, the journal, the views made from it, and reading them back."""
