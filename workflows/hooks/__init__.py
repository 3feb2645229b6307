"""Hooks carried out: all of one event at one point in one activity, whose answer is recorded (R10.17)."""
