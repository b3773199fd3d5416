"""User actions on runs, groups and sessions. All interfaces share each verb's function."""
