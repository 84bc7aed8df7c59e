"""What is frozen with a version is run by the code of that version, never collected here."""

collect_ignore_glob = ["[0-9]*"]
