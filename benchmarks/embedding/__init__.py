"""What does a step of a large embedding table cost, divided by columns and in four other ways?"""
