"""What a world is made of: streets, rooms, open ground, their materials and the paths through them."""
