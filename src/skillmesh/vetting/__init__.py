"""The trial of a received module: may it answer here?"""
