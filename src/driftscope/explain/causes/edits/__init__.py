"""Edits of a program that are tried before a fix is called tried: settings, wires, operators, of either side."""
