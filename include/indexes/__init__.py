"""Index versions: filled from results, verified, published, searched, rolled back."""
