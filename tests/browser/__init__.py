"""Tests in a real JupyterLab, shown by a real Chromium."""
