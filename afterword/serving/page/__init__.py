"""The web page of `afterword serve`: a file of routes for each subject, and the templates of its screens."""
