"""Rights: the objects that a text reaches, and the session's rights on them."""
