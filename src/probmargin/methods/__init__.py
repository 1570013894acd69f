"""Methods: recipes as frozen data; choices only, no arithmetic."""
