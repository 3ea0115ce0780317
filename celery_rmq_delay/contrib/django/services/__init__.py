"""The actions of the Django app: admin, commands and project code call these functions."""
