"""The leaderboard live: the game is played now, and its scores go through Kafka in real time."""
