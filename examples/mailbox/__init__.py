"""A clerk who reads mail and pays, and obeys whatever a mail says: the money stays."""
