"""What does LARS cost, and when does dividing its norms over the workers pay?"""
