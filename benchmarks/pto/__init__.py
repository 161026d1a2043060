"""What do the norms of LARS cost, and when does dividing them over the workers pay?"""
