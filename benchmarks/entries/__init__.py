"""How long does it take to add up entries, or to replace some?"""
