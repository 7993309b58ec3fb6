"""Cost model: predicted seconds of the GPU model beside measured profiles."""
