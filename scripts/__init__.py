"""What is run by hand, now and then: histories and pictures made anew."""
