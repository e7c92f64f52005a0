"""What a map is handed on as: files for other programs, pictures, a view."""
