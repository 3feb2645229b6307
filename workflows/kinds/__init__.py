"""What a call can be beside an activity of the engine's and a delegate: a sleep, and what a user of Temporal has already."""
