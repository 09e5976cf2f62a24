"""The commands about this user's logins to several pools."""
