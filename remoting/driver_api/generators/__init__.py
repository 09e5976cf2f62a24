"""Write the C and the types that come from the schema. A checkout has them, a wheel does not."""
