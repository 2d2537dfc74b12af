#!/usr/bin/env python3
"""Copies files into the listings of docs/ADD_AN_OPERATOR.md. Run it in the repository's root.

A listing is a block behind `<!-- file: PATH -->`, all of that file, or behind `<!-- line: PATH: TEXT -->`,
the file's lines that contain the text."""
import re

PAGE = "docs/ADD_AN_OPERATOR.md"


def listing(match):
    kind, path, text = match.group("kind"), match.group("path"), match.group("text")
    lines = open(path).read().splitlines()
    if kind == "line":
        lines = [line for line in lines if text in line]
    return match.group("mark") + "\n```c\n" + "\n".join(lines) + "\n```\n"


page = open(PAGE).read()
page = re.sub(r"(?P<mark><!-- (?P<kind>file|line): (?P<path>[^ :]+)(?:: (?P<text>.*?))? -->)\n```c\n.*?\n```\n",
              listing, page, flags=re.S)
open(PAGE, "w").write(page)
