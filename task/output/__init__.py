"""What leaves the product for users: charts without remote sources."""
