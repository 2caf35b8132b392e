//! How programs say what went wrong.

/// An error and its causes on one line, without the causes that the text already tells.
pub fn one_line(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut line, cause| {
        let text = cause.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::one_line;

    #[test]
    fn causes_are_told_once() {
        let error = Err::<(), _>(anyhow!("the disk is full")).context("a.json: cannot be written: the disk is full");
        assert_eq!(one_line(&error.unwrap_err()), "a.json: cannot be written: the disk is full");
        let error = Err::<(), _>(anyhow!("the disk is full")).context("a.json");
        assert_eq!(one_line(&error.unwrap_err()), "a.json: the disk is full");
    }
}
