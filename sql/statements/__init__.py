"""The runners of the statements that are neither reads nor writes, a file a subject."""
