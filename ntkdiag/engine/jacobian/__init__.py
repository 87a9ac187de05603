"""f, params, x -> the Jacobian in factored form."""
