"""What makes the parts of the site that no file under docs/ has; mkdocs.yml names its hooks."""
