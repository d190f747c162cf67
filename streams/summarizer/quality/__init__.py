"""The quality gate decides, from a summary's texts and its source alone, whether it may be stored."""
