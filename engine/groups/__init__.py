"""Consumer groups: made, sought, bookmarked and parked."""
