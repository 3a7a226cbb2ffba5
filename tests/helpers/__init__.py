"""What several test files share: made-up inputs, reference implementations, commands run here."""
