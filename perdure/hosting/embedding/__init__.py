"""What makes any worker one of Perdure's: the parts, for its own worker too, and the plugin that puts them into a user's."""
