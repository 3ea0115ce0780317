"""What people can do, each as one function that admin, commands and code call.

May import `models` and what is below it.
"""
