"""What a deployment costs at list prices: a model of the requests of each component."""
