//! The JSON Schema of reports, generated from the types.

use schemars::generate::SchemaSettings;

use super::Report;

/// The schema that every report written by this version fulfils.
pub fn schema() -> serde_json::Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<Report>().to_value()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_schema_is_the_one_of_the_types() {
        let committed = include_str!("../../schema/report-v1.json");
        let committed: serde_json::Value = serde_json::from_str(committed).unwrap();
        assert!(
            super::schema() == committed,
            "the schema has changed: ramforge report schema > ramforge-cli/schema/report-v1.json"
        );
    }
}
