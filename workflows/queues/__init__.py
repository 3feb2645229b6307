"""Which task queue a Request or a call goes to, where that is not the run's own."""
