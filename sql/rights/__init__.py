"""Rights: what a text reaches, and whether its session may."""
