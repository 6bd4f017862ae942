"""Who may do what: users and grants, and the look at each statement before it runs."""
