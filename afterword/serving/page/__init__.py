"""The page of `afterword serve`, for people. Each screen has its routes in a file."""
