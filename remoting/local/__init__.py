"""Folders, files, logs, terminal and logins of the machine that a process of ours runs on."""
