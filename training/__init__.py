"""Training of the generators: recipes, data, losses, and the loop that joins them."""
