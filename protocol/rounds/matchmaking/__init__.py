"""How those who are ready for a round become a group (matchmaking.py is the machine). Pure."""
