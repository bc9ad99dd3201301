"""What is told of an export, to people and to programs."""
